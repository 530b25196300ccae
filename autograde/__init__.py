"""Build, check and grade the course's notebooks: `python -m autograde --help`."""
