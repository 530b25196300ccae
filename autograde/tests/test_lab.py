"""What `make lab` sets on Jupyter's server."""
import asyncio
from unittest.mock import AsyncMock, Mock

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.websocket import KernelWebsocketHandler
from traitlets.config.loader import PyFileConfigLoader

from autograde.paths import AUTOGRADE


def test_a_kernels_messages_do_not_wait_for_acknowledgements(monkeypatch):
    config = PyFileConfigLoader("jupyter_server_config.py", path=str(AUTOGRADE)).load_config()
    handler, connected = Mock(spec=KernelWebsocketHandler), AsyncMock()
    monkeypatch.setattr(ZMQChannelsWebsocketConnection, "connect", connected)
    kind = config.ServerApp.kernel_websocket_connection_class
    connection = kind.__new__(kind)
    connection.websocket_handler = handler
    asyncio.run(connection.connect())
    handler.set_nodelay.assert_called_once_with(True)
    connected.assert_awaited_once()
