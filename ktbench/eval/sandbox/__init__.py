"""Generated programs run in a separate process, restricted by the kernel: no network, no files, no processes."""
