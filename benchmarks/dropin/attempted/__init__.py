"""The first thing that one would write, where that fails."""
