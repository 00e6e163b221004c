"""This machine: topology, capabilities, settings, health and roofs."""
