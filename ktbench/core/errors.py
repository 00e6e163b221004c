"""Errors that are the user's to mend."""


class RequestError(ValueError):
    """The request cannot be carried out as written: one line that says what, where and what is allowed."""
