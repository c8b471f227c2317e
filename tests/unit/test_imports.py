"""What the import fences of ``pyproject.toml`` cannot express."""

from __future__ import annotations

import grimp


def test_no_module_imports_a_package_that_imports_it():
    # The fence against circles compares modules of one package with each
    # other, not with the package that they are in.
    graph = grimp.build_graph('scheduler_service')
    circles = [
        (module, imported)
        for module in sorted(graph.modules)
        for imported in graph.find_modules_directly_imported_by(module)
        if module.startswith(f'{imported}.')
        and graph.chain_exists(importer=imported, imported=module)
    ]
    assert circles == []
