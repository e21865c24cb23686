"""How many threads an operation of training gets."""

import pytest
import tensorflow as tf

from tpu_graphs_ext.engine import threads


@pytest.fixture
def chosen(monkeypatch):
  """Returns a function of a number of cores: the threads that are chosen.

  None where it is left to TensorFlow.
  """
  asked = []
  monkeypatch.delenv(threads.VARIABLE, raising=False)
  monkeypatch.setattr(
      tf.config.threading, 'set_intra_op_parallelism_threads', asked.append)

  def of(cores, *most):
    monkeypatch.setattr(threads.os, 'cpu_count', lambda: cores)
    threads.one_for_each_operation(*most)
    return asked.pop() if asked else None

  return of


def test_few_cores_get_one_thread_an_operation(chosen):
  assert chosen(cores=2) == 1
  assert chosen(cores=None) == 1  # Where it cannot be known.
  assert chosen(cores=64) is None
  assert chosen(2, threads.RANKING_CORES) == 1
  assert chosen(4, threads.RANKING_CORES) is None


def test_the_variable_comes_first(chosen, monkeypatch):
  monkeypatch.setenv(threads.VARIABLE, '2')
  assert chosen(cores=2) is None  # TensorFlow reads it by itself.


@pytest.fixture
def too_late(monkeypatch):
  """TensorFlow has made its threads: a list of what it then refused."""
  refused = []
  for name in ('intra', 'inter'):
    def refuse(number, name=name):
      refused.append((name, number))
      raise RuntimeError('already initialized')
    monkeypatch.setattr(
        tf.config.threading, f'set_{name}_op_parallelism_threads', refuse)
  return refused


def test_it_is_no_error_where_tensorflow_runs_already(monkeypatch, too_late):
  monkeypatch.delenv(threads.VARIABLE, raising=False)
  monkeypatch.setattr(threads.os, 'cpu_count', lambda: 2)
  threads.one_for_each_operation()
  assert too_late == [('intra', 1)]


@pytest.mark.parametrize('processes, expected', [(1, None), (2, '4'),
                                                 (64, '1')])
def test_processes_divide_the_cores(monkeypatch, processes, expected):
  variables = {}
  monkeypatch.setattr(threads.os, 'environ', variables)
  monkeypatch.setattr(threads.os, 'sched_getaffinity', lambda _: range(8),
                      raising=False)
  threads.divide(processes)
  assert variables.get(threads.VARIABLE) == expected
  assert set(variables.values()) == ({expected} if expected else set())


def test_threads_that_are_chosen_stay(monkeypatch):
  variables = {threads.VARIABLE: '3'}
  monkeypatch.setattr(threads.os, 'environ', variables)
  threads.divide(1000)
  assert variables.pop(threads.VARIABLE) == '3'
  assert set(variables.values()) == {'1'}


def test_one_alone_has_one_thread_of_each_kind(monkeypatch):
  asked = []
  for name in ('intra', 'inter'):
    monkeypatch.setattr(
        tf.config.threading, f'set_{name}_op_parallelism_threads',
        lambda number, name=name: asked.append((name, number)))
  monkeypatch.setenv(threads.VARIABLE, '7')  # What others set is theirs.
  threads.one_alone()
  assert asked == [('intra', 1), ('inter', 1)]


def test_one_alone_is_no_error_where_tensorflow_runs_already(too_late):
  threads.one_alone()
  assert too_late and set(too_late) <= {('intra', 1), ('inter', 1)}
