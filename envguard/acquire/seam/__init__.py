"""The one seam between envguard and a machine: who answers questions, live, recorded, from a bundle, from afar."""
