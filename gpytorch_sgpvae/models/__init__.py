from .sgpvae import SGPVAE

__all__ = ["SGPVAE"]
