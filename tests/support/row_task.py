"""A third task, whole: rows of CSV tables, ranked by their last column."""

import pathlib

import numpy as np

from support import tiny_models
from tpu_graphs_ext.data.kernel import Kernel, Partition
from tpu_graphs_ext.data.normalize import FeatureStats
from tpu_graphs_ext.engine import settings, task
from tpu_graphs_ext.tasks import tile_batches as batches


class RowTraining(settings.Training):
  ARGS = 'model', 'model_kwargs_json', 'configs', 'run_id', 'results_csv'


class RowLoading(settings.Loading):
  pass


class RowTask(task.Task):
  name, problem, models_file = 'row', 'table', tiny_models.__file__
  training, loading = RowTraining, RowLoading

  def read(self, path, loading):
    return Partition.from_kernels(
        table(file.stem, np.loadtxt(file, delimiter=','))
        for file in sorted(pathlib.Path(path).glob('*.csv')))

  def statistics(self, args, loading):
    return self.prepared(loading)[1].stats, 1

  def prepared(self, settings):
    train, valid, test = (self.read(f'{settings.data_root}/{split}', settings)
                          for split in ('train', 'valid', 'test'))
    stats = FeatureStats.of_partition(train)
    return settings, task.Splits(train, valid, valid, test, 1, stats)

  def datasets(self, settings, splits, seed, first_epoch):
    return [batches.training_dataset(
        tables, splits.stats, batch_size=settings.batch, seed=seed,
        num_configs=settings.configs, first_epoch=first_epoch)
            for tables in (splits.train, splits.validated)]

  def sample_graph(self, stats):
    row = np.append(stats.config.minimum, 1)[np.newaxis]
    return batches.kernel_graph(table('', row), stats)

  def graphs(self, problem, stats):
    return [batches.kernel_graph(problem, stats)]


def table(name, rows):  # [rows, columns]; the last column is the time in ns.
  graph = np.zeros((1, 1), 'f4'), np.zeros(1, 'u1'), np.zeros((0, 2), 'i8')
  return Kernel(name, *graph, rows[:, :-1].astype('f4'),
                rows[:, -1].astype('i8'), np.ones(len(rows), 'i8'))


TASK = RowTraining.task = RowLoading.task = RowTask()
