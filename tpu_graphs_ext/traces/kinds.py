"""Kinds of kernels, and the arithmetic of products, by a function's name."""

from __future__ import annotations

import functools
import re

COMMUNICATION, EMBEDDING, SORT, OPTIMIZER, INDEXING = (
    'communication', 'embedding', 'sort or scan', 'optimizer', 'indexing')
PRODUCT, LAYOUT, ELEMENTWISE = (
    'product', 'layout or partial sums', 'element-wise')
# The first pattern that occurs in the name decides.
_KINDS = [(kind, re.compile(pattern)) for kind, pattern in (
    # Behind these names are those of all operators that Inductor has fused.
    (ELEMENTWISE, r'^triton_poi_'), ('reduction', r'^triton_(red|per)_'),
    (COMMUNICATION, r'(?i)nccl|rccl|all_?reduce|send_?recv|multimem|'
                    r'cross_device_reduce|all_?gather|reduce_?scatter|'
                    r'all_?to_?all|nvshmem'),
    ('copy to or from host', r'^Memcpy (HtoD|DtoH)|^Copy(Host|Device)To(D|H)'),
    ('copy or fill', r'^Mem(cpy|set)|^(Copy|Fill)(Buffer|DeviceTo)'),
    (EMBEDDING, r'(?i)embedding|bounds_check|pooled_emb|compute_grad_weight|'
                r'sum_and_scatter|segment_offset|partial_?segment|'
                r'partials_per_segment'),
    (OPTIMIZER, r'multi_tensor|(?i:fused_?(adam|sgd|adagrad))'),
    (LAYOUT, r'nchwTo|nhwc(To|AddPadding)|[cC]onvertTensor|scalePacked|'
             r'init_device_workspace|splitK?[rR]educe|[rR]educe(SplitK|_wgrad)|'
             r'[oO]ffsetsKernel|dot_do_o|convert_dq'),
    ('attention', r'(?i)sdpa|flash|fmha|attention|attn|mha'),
    ('recurrent cell', r'RNN|LSTM|GRU|(rnn|lstm|gru)_cell|(?i:lstm|gru)_elem'),
    (SORT, r'RadixSort|Scan|[sS]ort|Histogram|[uU]nique|cub::|thrust|[tT]opK|'
           r'radix'),
    ('pooling', r'(?i)pool'),
    ('reduction', r'native::reduce_kernel|(?i:softmax)|lpnorm|nll_loss|'
                  r'dot_kernel'),
    ('normalisation', r'[nN]orm(?!al)|bn_[bf]w|RowwiseMoments|GammaBeta'),
    ('convolution', r'(?i:conv(?!ert)|[wd]grad(?!i)|fprop|winograd|fft\dd)|'
                  r'implicit_gemm|scudnn|cudnn_generated|cudnn::(cnn|detail)'),
    (PRODUCT, r'(?<!fb)gemm|gemv|cutlass|splitK|cublas|nvjet|Cijk_|'
              r'triton_\w*(mm|matmul)|globalKernel|scal_kernel'),
    ('concat', r'CatArray'), ('reduction', r'[rR]educe(?!d_)'),
    (INDEXING, r'(?<!with_)index|gather|scatter|permute|jagged|bucketize|'
               r'sparse|lengths|segment'),
    (ELEMENTWISE, r'elementwise|Functor|_kernel_cuda|dropout|distribution'))]
# Their time depends on the arithmetic of their values.
_COMPUTING = PRODUCT, 'convolution', 'attention'
_ARITHMETIC = [(arithmetic, re.compile(pattern)) for arithmetic, pattern in (
    ('8 bits', r'(?i)e4m3|e5m2|fp8|nvjet_sm\d+_q|s8s8|i8i8|int8'),
    ('half', r'(?i)bf16|bfloat16|half|f16|h\d*gemm|nvjet_sm\d+_[hto]|'
           r'_[bh][bh]s?_'),
    ('tf32', r'(?i)tf32|tfloat32|s1688|nvjet_sm\d+_s|xf32'),
    ('double', r'(?i)dgemm|double|f64|_DB_'))]

_FAMILY = re.compile(r'.*?(?=\d{1,9}x\d)|[^<]*<(?:\d+, )*|.*', re.DOTALL)


@functools.lru_cache(maxsize=100_000)
def kind_of(name: str) -> str:
  """The kind of a kernel, by its function's name."""
  return next((kind for kind, pattern in _KINDS if pattern.search(name)),
              'other')


def class_of(name: str) -> str:
  """Its kind, with the arithmetic if its time depends on that."""
  kind = kind_of(name)
  return kind if kind not in _COMPUTING else f'{kind}, ' + next(
      (arithmetic for arithmetic, pattern in _ARITHMETIC
       if pattern.search(name)), 'float')


def labels_of(name: str) -> tuple[str, str, str]:
  """Class, family (the name up to its tile, or its types) and function."""
  return class_of(name), _FAMILY.match(name)[0], name
