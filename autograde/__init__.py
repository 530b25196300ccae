"""Build, check and grade the course's notebooks: `python -m autograde --help`."""
import sys

# jsonschema, which nbformat uses, takes a second to import it, for a kind of text that no notebook's schema has.
sys.modules.setdefault("rfc3987_syntax", None)
