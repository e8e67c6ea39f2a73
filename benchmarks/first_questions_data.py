"""The made documents that `first_questions.toml` asks about: the same text on every machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta

_SERVICES = ("orders", "billing", "search", "mailer", "gateway", "reports")
_PATHS = ("/api/orders", "/api/invoices", "/api/search", "/api/customers", "/api/reports")
_RARE = {
    137: "WARN  [gateway] certificate for shop.example.com expires in 6 days",
    402: "ERROR [billing] payment provider answered 502, invoice INV-20418 left unpaid",
    655: "INFO  [reports] nightly export finished, 48213 rows written to sales.parquet",
    871: "ERROR [mailer] queue outbound is full, 312 messages rejected",
    1044: "WARN  [orders] connection pool exhausted, waited 4200 ms for a connection",
    1290: "INFO  [gateway] certificate for shop.example.com renewed",
    1433: "ERROR [search] node srch-07 left the cluster, shards are moving",
    1502: "INFO  [search] node srch-07 joined the cluster again",
    1718: "WARN  [reports] volume /data is 91 percent full",
    1866: "INFO  [orders] release 4.12.3 started, schema version 88",
}
_THINGS = ("hex bolt", "wood screw", "washer", "wall anchor", "drill bit", "hinge", "cable tie")
_METALS = ("steel", "brass", "stainless", "zinc plated", "nylon")
_PACKS = (10, 25, 50, 100, 200, 500)
_REMARKS = ("", "", "", "", "", "", "", "fog", "hail", "thunder", "ground frost", "gale")
_TOWNS = ("Aarhus", "Bremen", "Cork", "Dijon", "Evora", "Ghent", "Leeds", "Turku", "Vigo")
_FIRMS = ("Nordmetal", "Castor", "Blueline", "Ferrum", "Quadrant", "Hollis", "Pallas", "Verity")


def _log_lines(rng: random.Random) -> Iterator[str]:
    at = datetime(2026, 3, 3, 21, 40)
    for number in range(2000):
        at += timedelta(milliseconds=rng.randint(300, 45_000))
        stamp = at.isoformat(sep=" ", timespec="milliseconds")
        service = rng.choice(_SERVICES)
        request = f"{rng.randrange(16**8):08x}"
        if number in _RARE:
            yield f"{stamp} {_RARE[number]}"
        elif rng.random() < 0.7:
            status = rng.choice((200, 200, 200, 200, 201, 204, 304, 404))
            path = f"{rng.choice(_PATHS)}/{rng.randint(1000, 99_999)}"
            yield (
                f"{stamp} INFO  [{service}] request {request} GET {path} {status} "
                f"in {rng.randint(3, 900)} ms"
            )
        elif rng.random() < 0.6:
            yield f"{stamp} DEBUG [{service}] cache miss for key user:{rng.randint(100, 9999)}"
        elif rng.random() < 0.7:
            yield f"{stamp} WARN  [{service}] request {request} slow, {rng.randint(901, 6000)} ms"
        else:
            yield f"{stamp} ERROR [{service}] request {request} failed: timeout after 30 s"


def _weather_lines(rng: random.Random) -> Iterator[str]:
    yield "date,t_min_c,t_max_c,rain_mm,wind_kmh,wind_from,sun_h,remark"
    for day in range(365):
        at = date(2025, 1, 1) + timedelta(days=day)
        season = 14 - abs(day - 200) / 13
        low = season + rng.uniform(-4, 4)
        rain = rng.choice((0.0, 0.0, 0.0, rng.uniform(0.2, 6), rng.uniform(2, 30)))
        yield (
            f"{at:%Y/%m/%d},{low:.1f},{low + rng.uniform(3, 11):.1f},{rain:.1f},"
            f"{rng.randint(3, 88)},{rng.choice(('N', 'NE', 'E', 'SE', 'S', 'SW', 'W', 'NW'))},"
            f"{max(0.0, rng.uniform(-2, 12)):.1f},{rng.choice(_REMARKS)}"
        )


def _price_lines(rng: random.Random) -> Iterator[str]:
    yield "code\tarticle\tsize\tpack\tnet_eur\tvat_pct\tdelivery_days"
    for number in range(320):
        code = f"{rng.choice('ABCDK')}{rng.choice('XYZ')}-{4000 + 7 * number}"
        article = f"{rng.choice(_THINGS)} {rng.choice(_METALS)}"
        size = f"M{rng.choice((4, 5, 6, 8, 10, 12))}x{rng.choice((20, 30, 40, 60, 80, 120))}"
        cents = rng.randint(240, 18_900)
        yield (
            f"{code}\t{article}\t{size}\t{rng.choice(_PACKS)}\t{cents / 100:.2f}\t"
            f"{rng.choice((7, 19, 19, 19))}\t{rng.randint(1, 28)}"
        )


def _inventory_lines(rng: random.Random) -> Iterator[str]:
    yield "# Sheet: Stock"
    yield "part,description,bin,on_hand,reorder_at,last_count"
    parts = [f"P{10_000 + 13 * number}" for number in range(180)]
    for part in parts:
        counted = date(2026, 1, 5) + timedelta(days=rng.randint(0, 80))
        yield (
            f"{part},{rng.choice(_METALS)} {rng.choice(_THINGS)},"
            f"{rng.choice('ABCDEF')}{rng.randint(1, 24):02d}-{rng.randint(1, 9)},"
            f"{rng.randint(0, 4000)},{rng.choice((50, 100, 250, 400))},{counted:%d.%m.%Y}"
        )
    yield ""
    yield "# Sheet: Orders"
    yield "order,part,quantity,supplier,due,state"
    suppliers = [f"{firm} {town}" for firm in _FIRMS for town in rng.sample(_TOWNS, 4)]
    for number in range(150):
        due = date(2026, 4, 1) + timedelta(days=rng.randint(0, 90))
        state = rng.choice(("open", "open", "confirmed", "shipped", "late", "cancelled"))
        yield (
            f"PO-{7100 + number},{rng.choice(parts)},{rng.choice(_PACKS) * 4},"
            f"{rng.choice(suppliers)},{due:%d.%m.%Y},{state}"
        )
    yield ""
    yield "# Sheet: Suppliers"
    yield "supplier,account,lead_days,terms,minimum_eur"
    for supplier in suppliers:
        terms = rng.choice(("net 14", "net 30", "net 60", "2% 10 days", "prepaid"))
        account = f"S{rng.randint(10_000, 99_999)}"
        yield f"{supplier},{account},{rng.randint(2, 45)},{terms},{rng.randint(1, 40) * 50}"


def generated(name: str) -> str:
    """The text of the made document `name`."""
    makers: dict[str, tuple[int, Callable[[random.Random], Iterator[str]]]] = {
        "server.log": (41, _log_lines),
        "weather.csv": (42, _weather_lines),
        "prices.tsv": (43, _price_lines),
        "inventory.csv": (44, _inventory_lines),
    }
    seed, lines = makers[name]
    return "\n".join(lines(random.Random(seed))) + "\n"
