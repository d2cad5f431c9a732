"""The job file: models, and the loader that names file and line in each error."""
