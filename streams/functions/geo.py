"""Distance on the sphere."""

from __future__ import annotations

import math

from .scalar import Scalar, gives, over, scalar

# Mean radius of the Earth; the same constants give 111.19 km for a degree.
_RADIUS = {"KM": 6371.0, "KILOMETER": 6371.0, "KILOMETERS": 6371.0, "MI": 3959.0, "MILE": 3959.0, "MILES": 3959.0}


def geo_distance(
    lat1: float | None, lon1: float | None, lat2: float | None, lon2: float | None, unit: str | None = "KM"
) -> float | None:
    """Haversine distance of two points in degrees; a null unit is kilometres. Raises ValueError for what cannot be."""
    if lat1 is None or lon1 is None or lat2 is None or lon2 is None:
        return None
    radius = _RADIUS.get((unit or "").strip().upper() or "KM")
    if radius is None:
        raise ValueError(f"GEO_DISTANCE function units parameter must be one of {sorted(_RADIUS)}, found {unit!r}")
    if max(abs(lat1), abs(lat2)) > 90 or max(abs(lon1), abs(lon2)) > 180:
        raise ValueError("valid latitude values for GeoDistance function are in the range of -90 to 90, longitude -180 to 180")
    d_lat, d_lon = math.radians(lat2 - lat1), math.radians(lon2 - lon1)
    a = math.sin(d_lat / 2) ** 2 + math.sin(d_lon / 2) ** 2 * math.cos(math.radians(lat1)) * math.cos(math.radians(lat2))
    return radius * 2 * math.asin(math.sqrt(a))


FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "GEO_DISTANCE",
        "Kilometres (or MILES) between two points given as latitude and longitude.",
        gives(0.0, 1.0, 2.0, 1.0, 2.0),
        over("(DOUBLE, DOUBLE, DOUBLE, DOUBLE) -> DOUBLE", geo_distance),
        over("(DOUBLE, DOUBLE, DOUBLE, DOUBLE, STRING) -> DOUBLE", geo_distance, handles_null=True),
    ),
)
