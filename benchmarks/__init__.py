"""Speed, memory and accuracy of gpytorch_sgpvae, beside the authors' package and GPyTorch's own SVGP."""
