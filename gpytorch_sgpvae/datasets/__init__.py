from .bouncing_balls import BouncingBalls, two_bouncing_balls

__all__ = ["BouncingBalls", "two_bouncing_balls"]
