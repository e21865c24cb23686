"""Waits for what other processes do."""

import time


def wait_for(there, seconds, pause=0.2):
  """Looks until `there()` is true; False if the time is up."""
  end = time.monotonic() + seconds
  while not there():
    if time.monotonic() > end:
      return False
    time.sleep(pause)
  return True
