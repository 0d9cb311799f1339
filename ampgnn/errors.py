"""The one exception that users see as a single line and exit status 2."""


class UserError(Exception):
    """Bad input: its message names the culprit and what is allowed, on one line."""
