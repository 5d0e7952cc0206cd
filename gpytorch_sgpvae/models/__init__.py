from .base import NETWORKS, AmortizedModel
from .gpvae import GPVAE
from .markov_gpvae import MarkovGPVAE
from .sgpvae import SGPVAE
from .vae import VAE

__all__ = ["GPVAE", "NETWORKS", "SGPVAE", "VAE", "AmortizedModel", "MarkovGPVAE"]
