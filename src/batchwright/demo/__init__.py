"""The demo: a small real model and sixty real rows that come along as packages."""
