"""Well-known facts as tables: what a toy model can learn by heart and a reader can check."""

from __future__ import annotations

# symbol, name, atomic number, kind, note
ELEMENTS: tuple[tuple[str, str, int, str, str], ...] = (
    ("H", "hydrogen", 1, "gas", "it is the lightest element and the main fuel of the stars"),
    ("He", "helium", 2, "noble gas", "it fills balloons and cools magnets in hospital scanners"),
    ("Li", "lithium", 3, "alkali metal", "it stores charge in phone and car batteries"),
    ("Be", "beryllium", 4, "alkaline earth metal", "it makes stiff and very light alloys"),
    ("B", "boron", 5, "metalloid", "it toughens the glass of laboratory flasks"),
    ("C", "carbon", 6, "non-metal", "it forms diamond, graphite and the molecules of life"),
    ("N", "nitrogen", 7, "gas", "it makes up about 78 percent of the air"),
    ("O", "oxygen", 8, "gas", "it makes up about 21 percent of the air and keeps fires burning"),
    ("F", "fluorine", 9, "halogen", "its compounds protect teeth against decay"),
    ("Ne", "neon", 10, "noble gas", "it glows orange red in advertising signs"),
    ("Na", "sodium", 11, "alkali metal", "it is one half of table salt"),
    ("Mg", "magnesium", 12, "alkaline earth metal", "it burns with a bright white light"),
    ("Al", "aluminium", 13, "metal", "it is light, does not rust and is easy to recycle"),
    ("Si", "silicon", 14, "metalloid", "it is the base of computer chips and of sand"),
    ("P", "phosphorus", 15, "non-metal", "it is found in matches, bones and fertiliser"),
    ("S", "sulfur", 16, "non-metal", "it is yellow and smells sharply when it burns"),
    ("Cl", "chlorine", 17, "halogen", "it keeps the water of swimming pools clean"),
    ("Ar", "argon", 18, "noble gas", "it shields hot metal while it is being welded"),
    ("K", "potassium", 19, "alkali metal", "nerves and muscles need it, and bananas contain it"),
    ("Ca", "calcium", 20, "alkaline earth metal", "it hardens bones, teeth and shells"),
    ("Ti", "titanium", 22, "metal", "it is strong and light enough for aircraft and implants"),
    ("Fe", "iron", 26, "metal", "it is the main part of steel and carries oxygen in blood"),
    ("Ni", "nickel", 28, "metal", "it protects other metals and appears in many coins"),
    ("Cu", "copper", 29, "metal", "it conducts electricity well and turns green outdoors"),
    ("Zn", "zinc", 30, "metal", "it coats steel to keep it from rusting"),
    ("Ag", "silver", 47, "metal", "it is the best conductor of electricity among the elements"),
    ("Sn", "tin", 50, "metal", "it lines food cans and melts at a low temperature in solder"),
    ("I", "iodine", 53, "halogen", "the thyroid gland needs it, and it stains starch blue"),
    ("W", "tungsten", 74, "metal", "it has the highest melting point of all metals"),
    ("Pt", "platinum", 78, "metal", "it speeds up reactions in the exhaust of cars"),
    ("Au", "gold", 79, "metal", "it never tarnishes and is used for jewellery and contacts"),
    ("Hg", "mercury", 80, "metal", "it is liquid at room temperature"),
    ("Pb", "lead", 82, "metal", "it is heavy, soft and stops X-rays"),
    ("U", "uranium", 92, "metal", "it is the fuel of most nuclear power stations"),
)
# name, place from the sun, kind, moons, note
PLANETS: tuple[tuple[str, int, str, str, str], ...] = (
    ("Mercury", 1, "rocky", "no moons", "it goes around the Sun in only 88 days"),
    ("Venus", 2, "rocky", "no moons", "its thick air makes it the hottest planet"),
    ("Earth", 3, "rocky", "one moon", "it is the only world known to carry life"),
    ("Mars", 4, "rocky", "two small moons", "iron rust gives it its red colour"),
    ("Jupiter", 5, "a gas giant", "dozens of moons", "it is larger than all the others together"),
    ("Saturn", 6, "a gas giant", "dozens of moons", "its bright rings are made of ice and rock"),
    ("Uranus", 7, "an ice giant", "more than twenty moons", "it spins lying on its side"),
    ("Neptune", 8, "an ice giant", "more than ten moons", "its winds are the fastest known"),
)
# country, capital, continent, currency, river or landmark
COUNTRIES: tuple[tuple[str, str, str, str, str], ...] = (
    ("France", "Paris", "Europe", "euro", "the Seine"),
    ("Germany", "Berlin", "Europe", "euro", "the Spree"),
    ("Italy", "Rome", "Europe", "euro", "the Tiber"),
    ("Spain", "Madrid", "Europe", "euro", "the Manzanares"),
    ("Portugal", "Lisbon", "Europe", "euro", "the Tagus"),
    ("Austria", "Vienna", "Europe", "euro", "the Danube"),
    ("Hungary", "Budapest", "Europe", "forint", "the Danube"),
    ("Poland", "Warsaw", "Europe", "zloty", "the Vistula"),
    ("Norway", "Oslo", "Europe", "krone", "a long fjord"),
    ("Sweden", "Stockholm", "Europe", "krona", "the islands of Lake Malaren"),
    ("Denmark", "Copenhagen", "Europe", "krone", "the Oresund strait"),
    ("Ireland", "Dublin", "Europe", "euro", "the Liffey"),
    ("the United Kingdom", "London", "Europe", "pound", "the Thames"),
    ("Czechia", "Prague", "Europe", "koruna", "the Vltava"),
    ("Egypt", "Cairo", "Africa", "pound", "the Nile"),
    ("Kenya", "Nairobi", "Africa", "shilling", "a national park at its edge"),
    ("Morocco", "Rabat", "Africa", "dirham", "the Bou Regreg"),
    ("Ghana", "Accra", "Africa", "cedi", "the Gulf of Guinea"),
    ("Japan", "Tokyo", "Asia", "yen", "the Sumida"),
    ("China", "Beijing", "Asia", "yuan", "the Great Wall to its north"),
    ("India", "New Delhi", "Asia", "rupee", "the Yamuna"),
    ("Thailand", "Bangkok", "Asia", "baht", "the Chao Phraya"),
    ("Vietnam", "Hanoi", "Asia", "dong", "the Red River"),
    ("Canada", "Ottawa", "North America", "dollar", "the Ottawa River"),
    ("Mexico", "Mexico City", "North America", "peso", "a high valley between volcanoes"),
    ("Cuba", "Havana", "North America", "peso", "a wide natural harbour"),
    ("Brazil", "Brasilia", "South America", "real", "the Paranoa lake"),
    ("Peru", "Lima", "South America", "sol", "the Rimac"),
    ("Chile", "Santiago", "South America", "peso", "the Mapocho"),
    ("Argentina", "Buenos Aires", "South America", "peso", "the Rio de la Plata"),
    ("Australia", "Canberra", "Oceania", "dollar", "Lake Burley Griffin"),
    ("New Zealand", "Wellington", "Oceania", "dollar", "the Cook Strait"),
)
# code, reason, meaning
HTTP: tuple[tuple[int, str, str], ...] = (
    (200, "OK", "the request worked and the body holds the answer"),
    (201, "Created", "the server made a new resource and says where it is"),
    (204, "No Content", "the request worked and there is nothing to send back"),
    (301, "Moved Permanently", "the resource has a new address for good"),
    (302, "Found", "the resource is at another address for now"),
    (304, "Not Modified", "the copy in the cache is still fresh"),
    (400, "Bad Request", "the server cannot understand what was sent"),
    (401, "Unauthorized", "the client has to say who it is first"),
    (403, "Forbidden", "the client is known but not allowed to do this"),
    (404, "Not Found", "there is nothing at this address"),
    (405, "Method Not Allowed", "the address exists but not for this method"),
    (409, "Conflict", "the change clashes with the present state"),
    (413, "Content Too Large", "the body is bigger than the server accepts"),
    (429, "Too Many Requests", "the client should slow down and try later"),
    (500, "Internal Server Error", "the server failed in a way it did not expect"),
    (502, "Bad Gateway", "the server behind the proxy gave a broken answer"),
    (503, "Service Unavailable", "the server is overloaded or down for repair"),
    (504, "Gateway Timeout", "the server behind the proxy took too long"),
)
# name, port, transport, purpose
PORTS: tuple[tuple[str, int, str, str], ...] = (
    ("FTP", 21, "TCP", "moves files between hosts"),
    ("SSH", 22, "TCP", "opens an encrypted shell on another machine"),
    ("Telnet", 23, "TCP", "opens an unencrypted shell and is rarely used today"),
    ("SMTP", 25, "TCP", "passes mail from server to server"),
    ("DNS", 53, "UDP", "turns host names into addresses"),
    ("HTTP", 80, "TCP", "carries web pages without encryption"),
    ("POP3", 110, "TCP", "fetches mail from a mailbox"),
    ("NTP", 123, "UDP", "keeps clocks in step"),
    ("IMAP", 143, "TCP", "reads mail that stays on the server"),
    ("LDAP", 389, "TCP", "looks up people and groups in a directory"),
    ("HTTPS", 443, "TCP", "carries web pages inside an encrypted channel"),
    ("MySQL", 3306, "TCP", "talks to a MySQL database"),
    ("PostgreSQL", 5432, "TCP", "talks to a PostgreSQL database"),
    ("Redis", 6379, "TCP", "talks to an in-memory key and value store"),
)
# quantity, unit, symbol, measured with
SI_UNITS: tuple[tuple[str, str, str, str], ...] = (
    ("length", "metre", "m", "a ruler or a laser"),
    ("mass", "kilogram", "kg", "a balance"),
    ("time", "second", "s", "a clock"),
    ("electric current", "ampere", "A", "an ammeter"),
    ("temperature", "kelvin", "K", "a thermometer"),
    ("amount of substance", "mole", "mol", "a count of particles"),
    ("luminous intensity", "candela", "cd", "a photometer"),
    ("force", "newton", "N", "a spring scale"),
    ("pressure", "pascal", "Pa", "a barometer"),
    ("energy", "joule", "J", "a calorimeter"),
    ("power", "watt", "W", "a power meter"),
    ("voltage", "volt", "V", "a voltmeter"),
    ("resistance", "ohm", "Ω", "an ohmmeter"),
    ("frequency", "hertz", "Hz", "a counter"),
)
# from, to, factor, sentence
CONVERSIONS: tuple[tuple[str, str, int], ...] = (
    ("minute", "seconds", 60),
    ("hour", "minutes", 60),
    ("day", "hours", 24),
    ("week", "days", 7),
    ("year", "months", 12),
    ("metre", "centimetres", 100),
    ("kilometre", "metres", 1000),
    ("kilogram", "grams", 1000),
    ("litre", "millilitres", 1000),
    ("dozen", "pieces", 12),
    ("foot", "inches", 12),
    ("yard", "feet", 3),
    ("byte", "bits", 8),
    ("century", "years", 100),
    ("decade", "years", 10),
)
# shape, sides, angle sum in degrees
SHAPES: tuple[tuple[str, int, int], ...] = tuple(
    (name, sides, (sides - 2) * 180)
    for sides, name in enumerate(
        (
            "triangle",
            "quadrilateral",
            "pentagon",
            "hexagon",
            "heptagon",
            "octagon",
            "nonagon",
            "decagon",
        ),
        3,
    )
)
_NATO = """
Alfa Bravo Charlie Delta Echo Foxtrot Golf Hotel India Juliett Kilo Lima Mike November Oscar Papa
Quebec Romeo Sierra Tango Uniform Victor Whiskey X-ray Yankee Zulu
"""
NATO: tuple[str, ...] = tuple(_NATO.split())
# Python built-in, what it does, example, value
BUILTINS: tuple[tuple[str, str, str, str], ...] = (
    ("len", "counts the items of a container", "len('tree')", "4"),
    ("sum", "adds up numbers", "sum([2, 3, 4])", "9"),
    ("max", "finds the largest item", "max(3, 8, 5)", "8"),
    ("min", "finds the smallest item", "min(3, 8, 5)", "3"),
    ("abs", "drops the sign of a number", "abs(-7)", "7"),
    ("sorted", "returns a new list in order", "sorted([3, 1, 2])", "[1, 2, 3]"),
    ("range", "yields whole numbers one by one", "list(range(3))", "[0, 1, 2]"),
    (
        "zip",
        "walks through several sequences together",
        "list(zip('ab', [1, 2]))",
        "[('a', 1), ('b', 2)]",
    ),
    (
        "enumerate",
        "pairs items with their positions",
        "list(enumerate('ab'))",
        "[(0, 'a'), (1, 'b')]",
    ),
    ("any", "tells whether at least one item is true", "any([False, True])", "True"),
    ("all", "tells whether every item is true", "all([True, False])", "False"),
    ("round", "rounds to the nearest whole number", "round(2.7)", "3"),
    ("ord", "gives the code point of a character", "ord('A')", "65"),
    ("chr", "gives the character of a code point", "chr(97)", "'a'"),
    ("divmod", "gives quotient and remainder at once", "divmod(17, 5)", "(3, 2)"),
    ("reversed", "walks through a sequence backwards", "list(reversed([1, 2]))", "[2, 1]"),
    ("isinstance", "checks the type of a value", "isinstance(3, int)", "True"),
    ("hex", "writes a number in base sixteen", "hex(255)", "'0xff'"),
    ("bin", "writes a number in base two", "bin(10)", "'0b1010'"),
    ("pow", "raises a number to a power", "pow(2, 5)", "32"),
)
# algorithm, cost, idea
ALGORITHMS: tuple[tuple[str, str, str], ...] = (
    ("binary search", "O(log n)", "it halves a sorted range until the item is found"),
    ("linear search", "O(n)", "it looks at the items one after another"),
    ("insertion sort", "O(n^2)", "it slides each item into the sorted part on its left"),
    ("bubble sort", "O(n^2)", "it swaps neighbours until nothing is out of order"),
    ("merge sort", "O(n log n)", "it sorts two halves and merges them"),
    ("quicksort", "O(n log n) on average", "it splits the items around a pivot"),
    ("heapsort", "O(n log n)", "it takes the largest item from a heap again and again"),
    ("hash table lookup", "O(1) on average", "it computes the slot from the key"),
    ("breadth-first search", "O(V + E)", "it visits a graph layer by layer with a queue"),
    ("depth-first search", "O(V + E)", "it follows one path to its end before the next"),
)
