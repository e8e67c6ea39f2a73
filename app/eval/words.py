"""The words that evaluation documents are made of, and keys that occur once in a document."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


def word_list(text: str) -> tuple[str, ...]:
    """The words of a text, in their order."""
    return tuple(text.split())


ADJECTIVES = word_list("""
amber ancient autumn bitter blue bold brave bright brisk broad bronze calm clever cold copper
crisp curly dark deep distant dusty early eager eastern empty fair faint fancy fast fierce flat
fresh frosty gentle giant glad golden grand gray great green hasty heavy hidden hollow honest
humble icy idle iron jolly keen kind large late lazy light little lively lonely long loud lucky
mellow mild misty modern narrow neat new noble northern odd old open pale plain polite proud quick
quiet rapid rare red rich rough round royal rusty sandy scarlet secret sharp shiny short silent
silver simple sleepy slow small smooth soft solid southern spare steady still stout strange strong
sunny sweet swift tall tame tender thick thin tidy tiny upper vast warm weary western white wide
wild windy wise wooden yellow young
""")

NOUNS = word_list("""
acorn anchor apple arrow badge barn barrel basin basket beacon bell bench berry bird blanket boat
bottle bow branch bridge brook broom bucket button cabin cable candle canoe canyon cart castle
cedar chair chapel cherry chest circle cliff clock cloud coast coin comb compass cottage crane
creek crown curtain desert desk dock door dragon drum eagle engine falcon farm feather fence ferry
field finch flag flute forest fort fountain fox garden gate glacier glove goat hammer harbor hawk
hedge helmet heron hill horn horse house island jacket jar kettle key kitchen kite ladder lake
lamp lantern leaf ledge lemon library lighthouse lion lodge maple market marsh meadow mill mirror
mountain needle nest oak oar ocean orchard otter owl paddle palace panther parcel path pearl
pepper piano pillow pine pipe plow pond porch potato prairie quarry rabbit raven reef ribbon ridge
river road robin rocket roof rope rose saddle sail salmon school shadow shell shelf ship shore
shovel signal sparrow spring spruce square stable star station stone storm stove stream street
swan table temple tent tiger torch tower trail train tree tunnel turtle valley violin wagon wall
well whale wheel willow window wing wolf yard
""")

PEOPLE = word_list("""
Ada Albert Alma Anton Bertha Boris Carla Cedric Clara Conrad Daphne David Dora Edith Edwin Elena
Emil Erika Felix Fiona Frank Greta Gustav Hanna Harold Helga Hugo Ida Igor Irene Ivan Jacob Judith
Karl Klara Laura Leon Lydia Magda Martin Mira Nadia Nora Oscar Otto Paula Peter Ralph Rita Robert
Ruth Selma Simon Stella Theo Tina Ulrich Ursula Vera Victor Walter Wanda Xenia Yvonne Zora
""")

VERBS = word_list("""
carries checks cleans closes counts covers crosses draws drops fills finds fixes follows guards
guides helps hides holds keeps leaves lifts likes lights marks meets mends moves needs opens
orders paints passes pulls pushes raises reaches remembers repairs rings sees sells sends serves
shares shows sorts stores takes tests touches turns uses visits warms washes watches weighs
""")

PLACES = word_list("""
above across after against along around before behind below beside between beyond by from in near
on over past through toward under with
""")

ATTRIBUTES = (
    "access code",
    "alarm code",
    "badge number",
    "batch number",
    "case number",
    "chart number",
    "contract number",
    "door code",
    "file number",
    "form number",
    "gate code",
    "invoice number",
    "key number",
    "lane number",
    "locker number",
    "lock code",
    "order number",
    "page number",
    "parcel number",
    "pass code",
    "phone number",
    "policy number",
    "queue number",
    "room number",
    "route number",
    "seat number",
    "serial number",
    "shelf number",
    "stall number",
    "tax number",
    "ticket number",
    "track number",
    "unit number",
    "vault code",
)


class Keys:
    """Draws names that have not been drawn before, so that what is asked about is unambiguous."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._taken: set[str] = set()

    def claim(self, name: str) -> bool:
        """Takes a name; False when it was taken before."""
        if name in self._taken:
            return False
        self._taken.add(name)
        return True

    def choose(self, options: Sequence[str]) -> str:
        """One that was not drawn before. Raises LookupError when all were."""
        left = [option for option in options if option not in self._taken]
        if not left:
            raise LookupError("all of these names are used up")
        name = self.rng.choice(left)
        self._taken.add(name)
        return name

    def thing(self) -> str:
        """`amber falcon`: an adjective and a noun, a pair used once."""
        while True:
            name = f"{self.rng.choice(ADJECTIVES)} {self.rng.choice(NOUNS)}"
            if self.claim(name):
                return name

    def slug(self) -> str:
        """`amber-falcon`, used once."""
        return self.thing().replace(" ", "-")

    def word(self) -> str:
        """A noun used once; when all are used up, two joined by an underscore."""
        try:
            return self.choose(NOUNS)
        except LookupError:
            return self.thing().replace(" ", "_")

    def number(self, digits: int = 3) -> str:
        """A number of so many digits, or more when those are used up, used once."""
        tries = 0
        while True:
            number = str(self.rng.randrange(10 ** (digits - 1), 10**digits))
            if self.claim(number):
                return number
            tries += 1
            digits += tries % 50 == 0
