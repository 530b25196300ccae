"""The one error that a user's input can cause."""


class InputError(Exception):
    """Bad input: the message is one line that names the file, what was found and what was expected."""
