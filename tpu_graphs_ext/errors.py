"""The one error that a user of the package is meant to see."""


class UserError(Exception):
  """Something the user gave cannot be used; the message says what and why.

  The message names the file or argument, the field, the rule, the value found
  and what to do. The command line prints it after `error:` and exits with 1.
  """
