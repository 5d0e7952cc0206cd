"""The studies, by the name that the command line knows them by."""

from . import accuracy, coefficients, dropin, growth, joint, large, loop, markov, memory, reach, shapes, tables

STUDIES = {
    "shapes": shapes.run,
    "accuracy": accuracy.run,
    "growth": growth.run,
    "reach": reach.run,
    "memory": memory.run,
    "coefficients": coefficients.run,
    "loop": loop.run,
    "joint": joint.run,
    "markov": markov.run,
    "dropin": dropin.run,
    "large": large.run,
    "tables": tables.run,
}
