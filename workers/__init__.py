"""Workers: the Celery app and tasks, backends, scorers and prices. They buy what the agent decided on."""
