"""The wording that error messages share."""

from tpu_graphs_ext import errors


def test_the_nearest_names_are_asked_for():
  names = ['epochs', 'epoch_size', 'batch']
  assert errors.did_you_mean('epoch', names) == (
      'did you mean epochs or epoch_size?')
  assert errors.did_you_mean('epoch', names, most=1) == 'did you mean epochs?'
  assert errors.did_you_mean('xyz', names) == ''


def test_a_printed_line_is_short_and_can_be_encoded():
  long = 'a.json: ' + 'x' * 2000 + '; give less'
  first, second = errors.printable(long + '\nb \ud800').split('\n')
  assert len(first) <= 500
  assert first.startswith('a.json: x') and first.endswith('; give less')
  assert second == 'b \\ud800'
  assert errors.printable('short') == 'short'


def test_shortened():
  assert errors.shortened(['a', 'b']) == 'a, b'
  assert errors.shortened(list('abcde')) == 'a, b, c and 2 more'
