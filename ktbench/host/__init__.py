"""The host: topology, capabilities, settings, health and roofs of the machine at hand."""
