"""Train a model: methods, objective, sampling, teachers, engines, one loop; no database, no commands."""

import os

from recovery import usable_cpus as cpus

# Settings of libraries, to be made before they are loaded; those of the environment take precedence.

# Large tensors on the CPU in huge pages. Without it glibc before 2.38 can't reuse what they leave behind: a
# process grew to the memory of all chunks of a loss together, where it needs that of one.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# oneDNN, and PyTorch's interface to it, each keep the kernels of the last 1,024 matrix products of different
# sizes, half a megabyte apiece. Batches without padding are of a new size each: a process grew by 800 MB.
for capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(capacity, "128")

# In a container with the time of fewer CPUs than it sees, one thread for each that it sees would wait.
if (allowed := cpus.usable_cpus()) < cpus.bound_to():
    os.environ.setdefault("OMP_NUM_THREADS", str(allowed))
