"""Amazon MSK's IAM logins, as docs/providers.md has them for each mode, before a broker that checks signatures.

kafka-python signs (SigV4) a request to the host that it connects to. OAUTHBEARER's token
is a signed address of the region, without any broker in it.
"""

import base64
import json
from typing import Any

import pytest
from kafka.net.sasl.msk import AwsMskIamClient

from proxy.core.auth.identity import IdentityPolicy
from tests.support import sasl_tools as sasl
from tests.support.sasl_tools import authenticate, authenticate_response, handshake, handshake_response
from tests.support.scripted_broker import connect, exchange, frame_api, read_frame, through

BROKER, SIDECAR = "b-1.example.kafka.eu-central-1.amazonaws.com", "127.0.0.1"
KEYS = {"access_key": "AKIAEXAMPLE", "secret_key": "secret", "region": "eu-central-1"}
REGION_URL = "https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Signature=ab12"
TOKEN = base64.urlsafe_b64encode(REGION_URL.encode()).rstrip(b"=").decode()
SASL_AUTHENTICATION_FAILED = 58


def signed_for_this_broker(message: bytes) -> bool:
    """Whether the signature is of a request to BROKER, by the client with KEYS, at the time that the message has."""
    said: dict[str, Any] = json.loads(message)
    own = AwsMskIamClient(BROKER, **KEYS)
    own.timestamp, own.datestamp = said["x-amz-date"], said["x-amz-date"][:8]
    return bool(json.loads(own.first_message())["x-amz-signature"] == said["x-amz-signature"])


async def broker(stream: Any, frame: bytes) -> None:
    if frame_api(frame) == sasl.SASL_HANDSHAKE:
        await stream.send_all(handshake_response())
        return
    assert frame_api(frame) == sasl.SASL_AUTHENTICATE
    if TOKEN.encode() in frame:
        await stream.send_all(authenticate_response())
        return
    accepted = signed_for_this_broker(frame[frame.index(b"{") : frame.rindex(b"}") + 1])
    await stream.send_all(authenticate_response(0 if accepted else SASL_AUTHENTICATION_FAILED))


@pytest.mark.parametrize(
    ("mechanism", "host", "accepted"),
    [
        pytest.param("AWS_MSK_IAM", SIDECAR, False, id="IAM, sidecar or gateway"),
        pytest.param("AWS_MSK_IAM", BROKER, True, id="IAM, transparent"),
        pytest.param("OAUTHBEARER", SIDECAR, True, id="bearer, sidecar or gateway"),
        pytest.param("OAUTHBEARER", BROKER, True, id="bearer, transparent"),
    ],
)
async def test_iam_login_through_the_sidecar(mechanism: str, host: str, accepted: bool) -> None:
    message = AwsMskIamClient(host, **KEYS).first_message() if mechanism == "AWS_MSK_IAM" else sasl.bearer(TOKEN)
    async with through(broker, identity=IdentityPolicy(("sasl",), unknown_user="iam")) as (proxy, asked, _):
        client = await connect(proxy, handshake(mechanism))
        assert await read_frame(client) == handshake_response()
        found = await exchange(client, authenticate(message))
        assert found == authenticate_response(0 if accepted else SASL_AUTHENTICATION_FAILED)
        assert asked.received == [handshake(mechanism), authenticate(message)], "not a byte is changed"
        if accepted:
            (connection,) = proxy.each_connection()
            assert (connection.user, connection.user_source) == ("iam", "sasl")
