"""An image whose pixels are squares where it has room for them, and are averaged where it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.image import AxesImage
from matplotlib.transforms import Bbox

from ..arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class HardImage(AxesImage):
    """Image in the data coordinates of axes.

    Nearest pixels are shown, unless fewer device pixels than pixels of the image lie along a side: then it is reduced
    by a filter, as pixels left out would show patterns that are not there.
    """

    def make_image(self, renderer: Any, magnification: float = 1.0, unsampled: bool = False) -> Any:
        """Return the image at the resolution of a device, as matplotlib asks for it."""
        left, right, bottom, top = self.get_extent()
        box = Bbox([[left, bottom], [right, top]]).transformed(self.get_transform())
        rows, columns = self.get_size()
        # Rounded, as a layout is exact to a part of a pixel only.
        has_room = round(magnification * box.width) >= columns and round(magnification * abs(box.height)) >= rows
        if self.get_interpolation() != (interpolation := "nearest" if has_room else "hanning"):
            self.set_interpolation(interpolation)
        return super().make_image(renderer, magnification, unsampled)


def show(ax: Axes, image: Array, extent: tuple[float, float, float, float], **look: Any) -> None:
    """Draw an image of shape (y, x), or (y, x, 4) with values of 0 to 1, as `Axes.imshow` does."""
    limits = {name: look.pop(name) for name in ("vmin", "vmax") if name in look}
    shown = HardImage(ax, extent=extent, resample=True, **look)  # the filter is as wide as the reduction
    shown.set_data(image)
    shown.set_clip_path(ax.patch)
    shown.set_clim(**limits)
    ax.add_image(shown)
