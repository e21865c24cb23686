"""What several test files use; some are also run by path, as programs."""

# Before any of them imports TensorFlow: it then comes with Keras 2.
import tpu_graphs_ext  # noqa: F401
