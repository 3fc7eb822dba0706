"""Train a model: methods, objective, sampling, teachers, engines, one loop; no database, no commands."""

import os

# Large tensors on the CPU in huge pages. Without it glibc before 2.38 can't reuse what they leave behind: a
# process grew to the memory of all chunks of a loss together, where it needs that of one.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
