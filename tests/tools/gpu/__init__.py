"""Parts of gpu_run.py: what training on a GPU is held against."""
