"""Generated programs run in a process of their own, restricted by the kernel: no network, no files, no processes."""
