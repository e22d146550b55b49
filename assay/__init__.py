"""The vocabulary that every Assay package shares: errors, plug-in registries, the score matrix, settings.

This package imports none of the others, so that algorithms, storage, workers and agent can speak the same
words without importing each other (docs/decisions/0001-shared-vocabulary.md).
"""

__version__ = "0.1.0"
