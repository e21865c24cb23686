"""Trains a small PyTorch Geometric model and writes its scores.

  python my_pyg.py DATA_ROOT SCORES.npz [EPOCHS]

It needs torch and torch_geometric, and nothing of tpu_graphs_ext. Trained on
DATA_ROOT/train, it scores the kernels of DATA_ROOT/valid.
"""

import pathlib
import sys

import numpy as np
import torch
from torch.nn import functional
from torch_geometric import nn


def read(folder: pathlib.Path) -> dict:
  """Kernel -> tensors of its file."""
  kernels = {}
  for path in sorted(folder.glob('*.npz')):
    with np.load(path) as file:
      kernels[path.stem] = {name: torch.from_numpy(
          file[name].astype(np.float32)) for name in file}
  return kernels


class TileModel(torch.nn.Module):
  """GraphSAGE on the instructions, pooled, then an MLP on each tile."""

  def __init__(self, num_opcodes: int = 121, width: int = 64):
    super().__init__()
    self.embedding = torch.nn.Embedding(num_opcodes, width)
    self.nodes = torch.nn.LazyLinear(width)
    self.sage = nn.GraphSAGE(width, width, num_layers=2)
    self.head = nn.MLP([width + 48, width, width, 1], norm=None)

  def forward(self, kernel: dict) -> torch.Tensor:
    """Scores [configs]; the lowest is the fastest tile."""
    x = self.nodes(_log(kernel['node_feat'])) + self.embedding(
        kernel['node_opcode'].long())  # [nodes, width]
    # Rows of edge_index are (consumer, producer).
    x = self.sage(x, kernel['edge_index'].long().T.flip(0))
    tiles = _log(kernel['config_feat'])  # [configs, 24]
    pooled = x.mean(0).expand(len(tiles), -1)
    return self.head(torch.cat([pooled, tiles, tiles ** 2], 1))[:, 0]


def _log(x: torch.Tensor) -> torch.Tensor:
  return torch.sign(x) * torch.log1p(torch.abs(x))


def loss(scores: torch.Tensor, kernel: dict) -> torch.Tensor:
  """Cross entropy of the fastest tile, soft by how much slower others are."""
  runtime = kernel['config_runtime'] / kernel['config_runtime_normalizers']
  likely = torch.softmax(-20 * (runtime / runtime.min() - 1), 0)
  return -(likely * functional.log_softmax(-scores, 0)).sum()


def main() -> None:
  torch.manual_seed(0)
  root, out = pathlib.Path(sys.argv[1]), sys.argv[2]
  train, valid = read(root / 'train'), read(root / 'valid')
  model = TileModel()
  model(next(iter(train.values())))  # Makes the lazy layer's weights.
  optimizer = torch.optim.Adam(model.parameters(), 1e-3)
  for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 10):
    for place in torch.randperm(len(train)):
      kernel = list(train.values())[place]
      optimizer.zero_grad()
      loss(model(kernel), kernel).backward()
      optimizer.step()
  with torch.no_grad():
    np.savez(out, **{
        name: model(kernel).numpy() for name, kernel in valid.items()})


if __name__ == '__main__':
  main()
