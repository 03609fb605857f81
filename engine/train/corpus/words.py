"""Word lists of the synthetic world."""

from __future__ import annotations


def _listed(text: str) -> tuple[str, ...]:
    """Words at blanks, or phrases at bars."""
    return tuple(text.split("|") if "|" in text else text.split())


NAMES = _listed(
    "Ada Bruno Clara Dmitri Elena Felix Greta Hugo Ines Jonas Karin Leo Mara Nils Olga Pavel Rosa "
    "Stefan Tessa Umar Vera Walter Yara Zoe Amir Bella Carlos Dora Emil Fiona Georg Hanna Ivan "
    "Judit Kofi Lena Marco Nora Omar Petra Quinn Ravi Selma Tomas Ute Viktor Wanda Xenia Yusuf "
    "Zara"
)
PLACES = _listed(
    "Alder Bridge|Birch Hill|Cedar Point|Dunmore|Eastgate|Fernley|Grayport|Harrow Bay|Inkwell|"
    "Juniper Cove|Kingsmere|Larkfield|Millbrook|Northam|Oakridge|Pinehurst|Quarry Lane|Redwater|"
    "Stonefield|Thornbury|Upton|Valewood|Westcliff|Yarrow|Zeller Falls|Ashdown|Briarton|Coldwell"
)
GOODS = _listed(
    "copper wire|oak planks|rice|lamp oil|glass jars|iron nails|wool blankets|dried figs|paint|"
    "roof tiles|paper rolls|tea|coffee beans|flour|salt|rope|candles|bricks|cotton|seed potatoes|"
    "honey|soap|leather belts|clay pots|apples|olive oil|steel bolts|batteries|filters|tool kits"
)
UNITS = _listed("crate box barrel sack pallet bundle")
COLOURS = _listed("red blue green yellow white black orange purple grey brown")
ANIMALS = _listed(
    "heron|kestrel|barn owl|robin|magpie|swift|kingfisher|wren|lapwing|curlew|red fox|hare|otter|"
    "badger|roe deer|hedgehog|stoat|grey seal|newt|common toad"
)
HABITATS = _listed(
    "the reed bed|the old mill|the north meadow|the pine wood|the river bank|the stone wall|"
    "the pond|the hedge|the salt marsh|the orchard"
)
WEATHER = _listed(
    "light rain|thick fog|clear sky|strong wind|low cloud|warm sun|first snow|a cold drizzle"
)
DAYS = _listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _listed(
    "January February March April May June July August September October November December"
)
DISHES = _listed(
    "lentil soup|vegetable stew|mushroom risotto|tomato pasta|bean chili|potato salad|fish pie|"
    "chicken curry|onion tart|pumpkin soup|rice pilaf|apple crumble"
)
INGREDIENTS = _listed(
    "onions|carrots|potatoes|tomatoes|red lentils|rice|beans|mushrooms|garlic|butter|cream|basil|"
    "thyme|lemons|apples|flour|eggs|cheese|peppers|spinach"
)
MODULES = _listed(
    "parser scheduler cache router logger indexer loader planner monitor gateway importer exporter "
    "mailer billing search session uploader renderer"
)
SERVICES = _listed("auth orders billing search mailer images reports gateway")
TOPICS = _listed(
    "astronomy|bread baking|chess|gardening|map reading|photography|bird watching|woodworking|"
    "first aid|knitting|sailing|pottery|cycling|music theory|local history"
)
