"""The host: topology, capabilities, settings, health and roofs of this machine."""
