from .bouncing_balls import BouncingBalls, bouncing_ball, bouncing_balls

__all__ = ["BouncingBalls", "bouncing_ball", "bouncing_balls"]
