"""The trusted part on a node: it syncs, starts trainers and stores what they make."""
