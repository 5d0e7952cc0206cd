from .base import NETWORKS, AmortizedModel
from .gpvae import GPVAE
from .markov_gpvae import MarkovGPVAE
from .sgpvae import SGPVAE
from .vae import VAE
from .window_model import window_model

__all__ = ["GPVAE", "NETWORKS", "SGPVAE", "VAE", "AmortizedModel", "MarkovGPVAE", "window_model"]
