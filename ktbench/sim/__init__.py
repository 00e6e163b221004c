"""Steps on described machines: task graph, cost models, executor, calibration, judging, sensitivity and cost search."""
