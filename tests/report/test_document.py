import dataclasses
import json
import math

from traincast.report._document import document_forecast, format_json
from traincast.spec import Forecast


def test_a_document_has_every_field_of_the_answer_and_says_what_dominates(forecast: Forecast) -> None:
    document = json.loads(format_json(document_forecast(forecast)))
    assert {item.name for item in dataclasses.fields(Forecast)} - {"origin"} <= set(document)
    assert document["step"]["seconds"] == forecast.step.seconds
    assert document["memory"]["fits"] is True
    assert document["limit"]["share"] == "compute"


def test_numbers_that_json_cannot_hold_become_null(forecast: Forecast) -> None:
    odd = dataclasses.replace(forecast, samples_per_s=math.inf)
    assert json.loads(format_json(document_forecast(odd)))["samples_per_s"] is None
