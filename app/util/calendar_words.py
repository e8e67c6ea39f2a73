"""Names of months and weekdays in English, German, French and Spanish, in lower case."""

from __future__ import annotations

import re


def _numbered(rows: str, first: int) -> dict[str, int]:
    lines = enumerate(rows.strip().splitlines(), first)
    return {name: number for number, names in lines for name in names.split()}


MONTHS = _numbered(
    """
january januar jänner janvier enero jan
february februar février fevrier febrero feb
march märz mars marzo mar mär
april avril abril apr
may mai mayo
june juni juin junio jun
july juli juillet julio jul
august août aout agosto aug
september septembre septiembre setiembre sept sep
october oktober octobre octubre oct okt
november novembre noviembre nov
december dezember décembre decembre diciembre dec dez
""",
    1,
)
WEEKDAYS = _numbered(
    """
monday montag lundi lunes mon mo
tuesday dienstag mardi martes tue tues di
wednesday mittwoch mercredi miércoles miercoles wed mi
thursday donnerstag jeudi jueves thu thur thurs do
friday freitag vendredi viernes fri fr
saturday samstag sonnabend samedi sábado sabado sat sa
sunday sonntag dimanche domingo sun so
""",
    0,
)
AMBIGUOUS = frozenset(["may", "mai", "mayo", "march", "mars", "sept"])
"""Months that are other words, too, in one of the languages."""
_SHORT = "jan feb mar mär apr jun jul aug sept sep oct okt nov dec dez"
SHORT = frozenset(_SHORT.split())
"""Months that may have a dot."""
DAY_BEFORE_MONTH = re.compile(
    r"\s{1,4}(?:januar|jänner|februar|märz|april|mai|juni|juli|august|september|oktober|november"
    r"|dezember|jan|feb|mär|apr|jun|jul|aug|sept?|okt|nov|dez)\b",
    re.IGNORECASE,
)
"""Matches a German month after the dot of a day, as in `3. April`."""
