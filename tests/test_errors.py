"""The one error that users see."""

import pytest

from tpu_graphs_ext import errors

KERAS = '''Exception encountered when calling layer 'm' (type M).

{}

Call arguments received by layer 'm' (type M):
  • training=True'''
AUTOGRAPH = '''in user code:

    File "models.py:0123abcd", line 3, in call  *
        return x["a"]

    TypeError: no slice
'''
RUNNING = '''Graph execution error:

Detected at node add defined at (most recent call last):
  File "models.py:0123abcd", line 3, in call
indices[0] = 9 is not in [0, 4)
\t [[{{node add}}]] [Op:__inference_f_1]'''


@pytest.mark.parametrize('text, reason', [
    ('a\nb\nc', 'a b'), ('', 'ValueError'), (AUTOGRAPH, 'TypeError: no slice'),
    (KERAS.format('10 and 7'), '10 and 7'),
    (KERAS.format(AUTOGRAPH), 'TypeError: no slice'),
    (AUTOGRAPH.replace('TypeError: no slice', 'ValueError: ' + KERAS.format(
        AUTOGRAPH)), 'TypeError: no slice'),
    (AUTOGRAPH.replace('no slice', "'outputs' must be defined\nNote: a "
                       'ValueError: ' + KERAS.format('10 and 7')), '10 and 7'),
    (AUTOGRAPH.replace('no slice', "'outputs' must be defined\n    Note: Auto"
                       'Graph tried to define it automatically, but ran into a '
                       "KeyError: 'a'"), "KeyError: 'a'"),
    (RUNNING, 'indices[0] = 9 is not in [0, 4)')])
def test_reason_without_a_stack_trace(text, reason):
  assert errors.reason_of(ValueError(text)) == reason
