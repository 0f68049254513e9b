"""Names to data sets with three splits; images to pixel values."""

from pliant.data.augment import Augment
from pliant.data.decode import cache_folder
from pliant.data.images import Normalization, normalized, pixel_values
from pliant.data.sets import ImageData, Images, ImageSet
from pliant.data.sources import SOURCES, load

__all__ = [
    "SOURCES",
    "Augment",
    "ImageData",
    "ImageSet",
    "Images",
    "Normalization",
    "cache_folder",
    "load",
    "normalized",
    "pixel_values",
]
