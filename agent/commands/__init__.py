"""The commands of `assay`, one module each; `register(app)` adds a command to the application."""
