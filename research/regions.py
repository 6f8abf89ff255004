"""The carbon intensities that CodeCarbon publishes, to the catalogue's table of regions: `python -m research.regions WHEEL`."""

import csv
import io
import json
import re
import sys
import unicodedata
import zipfile
from pathlib import Path

TARGET = Path(__file__).parents[1] / "src/traincast/catalog/data/regions.json"
POUNDS_PER_MWH = 0.45359237
"""In grams per kWh."""
PLACES: dict[str, dict[str, str]] = {
    "aws": {
        "us-east-1": "us-virginia",
        "us-east-2": "us-ohio",
        "us-west-1": "us-california",
        "us-west-2": "us-oregon",
        "ca-central-1": "canada",
        "sa-east-1": "brazil",
        "eu-west-1": "ireland",
        "eu-west-2": "united-kingdom",
        "eu-west-3": "france",
        "eu-central-1": "germany",
        "eu-north-1": "sweden",
        "eu-south-1": "italy",
        "eu-south-2": "spain",
        "ap-northeast-1": "japan",
        "ap-northeast-2": "south-korea",
        "ap-southeast-1": "singapore",
        "ap-southeast-2": "australia",
        "ap-south-1": "india",
    },
    "azure": {
        "eastus": "us-virginia",
        "eastus2": "us-virginia",
        "southcentralus": "us-texas",
        "centralus": "us-iowa",
        "westus": "us-california",
        "westus2": "us-washington",
        "westus3": "us-arizona",
        "northeurope": "ireland",
        "westeurope": "netherlands",
        "swedencentral": "sweden",
        "francecentral": "france",
        "germanywestcentral": "germany",
        "uksouth": "united-kingdom",
        "japaneast": "japan",
        "australiaeast": "australia",
        "southeastasia": "singapore",
        "centralindia": "india",
        "koreacentral": "south-korea",
    },
    "oracle": {
        "us-ashburn-1": "us-virginia",
        "us-phoenix-1": "us-arizona",
        "eu-frankfurt-1": "germany",
        "uk-london-1": "united-kingdom",
    },
    "nebius": {
        "eu-north1": "finland",
        "eu-west1": "france",
        "us-central1": "us-missouri",
        "uk-south1": "united-kingdom",
    },
    "lambda": {"us-east-1": "us-virginia", "us-west-1": "us-california", "us-south-1": "us-texas"},
    "runpod": {"IN": "india"},
    "gcp": {"us-central2": "us-oklahoma"},
}
"""Where a provider says that its regions are; Google publishes figures of its own for most of its regions."""


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        countries = json.loads(read(archive, "private_infra/global_energy_mix.json"))
        states = json.loads(read(archive, "private_infra/2023/usa_emissions.json"))
        google = list(csv.DictReader(io.StringIO(read(archive, "cloud/impact.csv"))))
    version = Path(wheel).name.split("-")[1]
    regions: dict[str, dict[str, object]] = {}
    for code, facts in sorted(countries.items()):
        if facts.get("carbon_intensity"):
            regions[slug(facts["country_name"])] = entry(facts["carbon_intensity"], facts["year"], "mix", [code])
    for name, facts in sorted(states.items()):
        if not name.startswith("_") and "emissions" in facts:
            code = f"us-{facts['regionCode'].lower()}"
            regions[f"us-{slug(name)}"] = entry(facts["emissions"] * POUNDS_PER_MWH, 2023, "egrid", [code])
    taken: set[str] = set()
    for row in google:
        name = row["region"].replace("cenrtal", "central")
        regions[f"gcp-{name}"] = entry(float(row["impact"]), "", "google", [name])
        taken.add(name)
    for provider, places in PLACES.items():
        for name, place in places.items():
            # Two providers may use one name; it means the first's.
            plain = [name] if name not in taken and provider != "runpod" else []
            taken.update(plain)
            regions[f"{provider}-{name.lower()}"] = {**regions[place], "place": place, "aliases": plain}
    sources = {
        "mix": f"CodeCarbon {version} (MIT), global_energy_mix.json: electricity of the country",
        "egrid": f"CodeCarbon {version} (MIT), usa_emissions.json: EPA eGRID2023, annual CO2 output rate of the state",
        "google": f"CodeCarbon {version} (MIT), impact.csv: cloud.google.com/sustainability/region-carbon",
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in regions.items())
    text = f'{{\n "sources": {json.dumps(sources, indent=1)},\n "regions": {{\n{lines}\n }}\n}}\n'
    TARGET.write_text(text, encoding="utf-8")


def read(archive: zipfile.ZipFile, name: str) -> str:
    return archive.read(f"codecarbon/data/{name}").decode("utf-8-sig")


def entry(grams: float, year: object, source: str, aliases: list[str]) -> dict[str, object]:
    return {"grams_co2_per_kwh": round(grams, 1), "date": str(year), "source": source, "aliases": aliases}


def slug(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


if __name__ == "__main__":
    main(sys.argv[1])
