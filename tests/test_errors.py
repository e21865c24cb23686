"""The wording that error messages share."""

from tpu_graphs_ext import errors


def test_the_nearest_names_are_asked_for():
  names = ['epochs', 'epoch_size', 'batch']
  assert errors.did_you_mean('epoch', names) == (
      'did you mean epochs or epoch_size?')
  assert errors.did_you_mean('epoch', names, most=1) == 'did you mean epochs?'
  assert errors.did_you_mean('xyz', names) == ''


def test_shortened():
  assert errors.shortened(['a', 'b']) == 'a, b'
  assert errors.shortened(list('abcde')) == 'a, b, c and 2 more'
