"""The two networks of pix2pix (Isola et al. 2017, appendix): a U-Net of 54.4 million weights and a 70 x 70 PatchGAN of 2.8."""

from typing import Any

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 512, 512, 512, 512)


class UNet(nn.Module):
    """Eight halvings and eight doublings, each doubling beside the halving of its size."""

    def __init__(self) -> None:
        super().__init__()
        downs, ups = [], []
        for place, width in enumerate(WIDTHS):
            wide = 3 if place == 0 else WIDTHS[place - 1]
            norm = [nn.BatchNorm2d(width)] if 0 < place < len(WIDTHS) - 1 else []
            first: list[nn.Module] = [] if place == 0 else [nn.LeakyReLU(0.2)]
            downs.append(nn.Sequential(*first, nn.Conv2d(wide, width, 4, stride=2, padding=1), *norm))
            inner = width if place == len(WIDTHS) - 1 else 2 * width
            last: list[nn.Module] = [nn.Tanh()] if place == 0 else [nn.BatchNorm2d(wide)]
            drops = [nn.Dropout(0.5)] if place in (4, 5, 6) else []
            up = nn.ConvTranspose2d(inner, wide, 4, stride=2, padding=1)
            ups.append(nn.Sequential(nn.ReLU(), up, *last, *drops))
        self.downs, self.ups = nn.ModuleList(downs), nn.ModuleList(ups)

    def forward(self, image: Tensor) -> Tensor:
        kept = []
        for down in self.downs:
            image = down(image)
            kept.append(image)
        for place in reversed(range(len(WIDTHS))):
            image = self.ups[place](image if place == len(WIDTHS) - 1 else torch.cat([image, kept[place]], dim=1))
        return image


def _patches() -> nn.Module:
    """Real or generated, for each patch of an image."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
    for wide, width, stride in ((64, 128, 2), (128, 256, 2), (256, 512, 1)):
        layers += [nn.Conv2d(wide, width, 4, stride=stride, padding=1), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, padding=1))


def generator(batch: int = 1) -> tuple[nn.Module, dict[str, Any]]:
    return UNet(), {"image": torch.zeros(batch, 3, 256, 256)}


def discriminator(batch: int = 1) -> tuple[nn.Module, tuple[Tensor]]:
    return _patches(), (torch.zeros(batch, 3, 256, 256),)
