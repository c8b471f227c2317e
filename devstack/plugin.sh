#!/usr/bin/env bash
# devstack plugin: install, configure, start and stop the scheduler.
#
# In local.conf:
#   enable_plugin scheduler-service URL
# devstack sources this file with the phase as arguments. It defines the
# functions that are called here, such as setup_develop, iniset, run_process.

# Install the package from its tree.
function install_scheduler_service {
    setup_develop "$SCHEDULER_SERVICE_DIR"
}

# Write the configuration file.
function configure_scheduler_service {
    local conf=$SCHEDULER_SERVICE_CONF
    sudo install -d -m 0750 -o "$STACK_USER" "$SCHEDULER_SERVICE_CONF_DIR"
    # It will have passwords.
    install -m 0640 "$SCHEDULER_SERVICE_DIR/etc/scheduler_service/scheduler_service.conf" \
        "$conf"
    iniset "$conf" DEFAULT debug "$ENABLE_DEBUG_LOG_LEVEL"
    iniset "$conf" database connection \
        "$(database_connection_url scheduler_service)"
    iniset_rpc_backend scheduler_service "$conf"
}

# Create the database and its tables, and import the inventory.
function init_scheduler_service {
    recreate_database scheduler_service
    scheduler_service_manage db sync
    if [[ -n "$SCHEDULER_SERVICE_INVENTORY" ]]; then
        scheduler_service_manage inventory import "$SCHEDULER_SERVICE_INVENTORY"
    fi
}

# Run scheduler-manage with our configuration.
function scheduler_service_manage {
    "$(get_python_exec_prefix)/scheduler-manage" \
        --config-file "$SCHEDULER_SERVICE_CONF" "$@"
}

# Start the daemon.
function start_scheduler_service {
    run_process scheduler-service \
        "$(get_python_exec_prefix)/scheduler-service --config-file $SCHEDULER_SERVICE_CONF"
}

# Stop the daemon.
function stop_scheduler_service {
    stop_process scheduler-service
}

# Remove the configuration.
function cleanup_scheduler_service {
    sudo rm -rf "$SCHEDULER_SERVICE_CONF_DIR"
}

if is_service_enabled scheduler-service; then
    case "${1:-} ${2:-}" in
        "stack install")
            echo_summary "Installing scheduler-service"
            install_scheduler_service
            ;;
        "stack post-config")
            echo_summary "Configuring scheduler-service"
            configure_scheduler_service
            init_scheduler_service
            ;;
        "stack extra")
            echo_summary "Starting scheduler-service"
            start_scheduler_service
            ;;
        "unstack ")
            stop_scheduler_service
            ;;
        "clean ")
            cleanup_scheduler_service
            ;;
    esac
fi
