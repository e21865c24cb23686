"""How many threads TensorFlow gets."""

from tpu_graphs_ext.engine import threads


def test_few_cores_get_one_thread_an_operation(monkeypatch):
  asked, few = [], threads.RANKING_CORES
  monkeypatch.delenv(threads.VARIABLE, raising=False)
  monkeypatch.setattr(threads, 'one_each', lambda *_: asked.append(1))
  for cores, most, is_few in ((2, (), True), (64, (), False),
                              (2, (few,), True), (4, (few,), False)):
    monkeypatch.setattr(threads, 'cores', lambda cores=cores: cores)
    asked.clear()
    threads.one_for_each_operation(*most)
    assert asked == ([1] if is_few else [])
  asked.clear()
  monkeypatch.setenv(threads.VARIABLE, '2')  # TensorFlow reads it by itself.
  threads.one_for_each_operation()
  assert not asked


def test_cores_are_those_of_this_process(monkeypatch):
  monkeypatch.setattr(threads.os, 'cpu_count', lambda: 64)
  monkeypatch.setattr(threads.os, 'sched_getaffinity', lambda _: {3, 5},
                      raising=False)
  assert threads.cores() == 2
  monkeypatch.delattr(threads.os, 'sched_getaffinity')
  assert threads.cores() == 64
  monkeypatch.setattr(threads.os, 'cpu_count', lambda: None)
  assert threads.cores() == 1


def test_processes_divide_the_cores(monkeypatch):
  monkeypatch.setattr(threads.os, 'sched_getaffinity', lambda _: range(8),
                      raising=False)
  for processes, environment, expected in (
      (1, {}, set()), (2, {}, {'4'}),
      (1000, {threads.VARIABLE: '3'}, {'1', '3'})):
    monkeypatch.setattr(threads.os, 'environ', environment)
    threads.divide(processes)
    assert set(environment.values()) == expected
